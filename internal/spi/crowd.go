package spi

import "github.com/bluecone-go/bluecone/internal/crowd"

type (
	// Crowd lets only so many calls of each caller in.
	Crowd = crowd.Crowd
	// CallLimits are those of one caller.
	CallLimits = crowd.Limits
)

// NewCrowd makes a crowd that begins to forget callers when it knows so many.
func NewCrowd(most int) *Crowd { return crowd.New(most) }
