// Package schema is what ent generates the code of the tests from.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/schema/field"
)

// Order is an order of a shop, and the points that it has given.
type Order struct{ ent.Schema }

// Fields are its columns.
func (Order) Fields() []ent.Field {
	return []ent.Field{field.String("id"), field.Int("cents"), field.Int("points").Default(0)}
}
