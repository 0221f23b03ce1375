// Package release tests that what a release tags can be used without this tree: the command is installed, and programs
// of users are built, from a file proxy that holds the modules as a tag would.
package release
