package health

import (
	"testing"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }
