module github.com/bluecone-go/bluecone/adapter/enttx

go 1.26.0

require (
	entgo.io/ent v0.14.5
	github.com/bluecone-go/bluecone v0.1.0
	github.com/stretchr/testify v1.12.1
	github.com/uptrace/bun v1.3.0
)
