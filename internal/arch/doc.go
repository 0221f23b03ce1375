// Package arch holds no code: its tests keep the shape of the house.
package arch
