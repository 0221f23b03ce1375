package spi

import "github.com/bluecone-go/bluecone/internal/origin"

// Keys of the metadata of an event that an inbox has landed: where it comes from.
const (
	MetaOriginSource    = origin.Source
	MetaOriginPartition = origin.Partition
	MetaOriginOffset    = origin.Offset
)

// Undecodable is the type of the events as which messages land that an inbox cannot read.
const Undecodable = origin.Undecodable
