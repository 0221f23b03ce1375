# Everything a developer does here. `make` alone says what there is.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The race detector needs a C compiler; without one the tests run without it, and say so.
RACE = $$(command -v gcc >/dev/null && echo -race || echo 'make: no gcc: running without -race' >&2)
LINT = go tool -modfile=tools/go.mod golangci-lint

.PHONY: help demo test test-short soak lint fmt tidy cover packages

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## the demo: ten scenarios on an embedded database (go run ./demo/bluecone)
	go run ./demo/bluecone

test: packages ## all tests on MariaDB, PostgreSQL and SQLite, with the race detector
	go test $(RACE) -count=1 -timeout 20m ./...

test-short: ## the same on SQLite only, without the long ones
	go test -short ./...

soak: packages ## three instances on MariaDB, one killed every 3 s, for SOAK=1m
	BLUECONE_TEST_REQUIRE=mysql BLUECONE_TEST_SOAK=$(or $(SOAK),1m) go test -count=1 -v -timeout 2h -run TestSoak_ThreeInstances ./demo/bluecone

lint: ## formatting, golangci-lint, and go.mod being tidy
	$(LINT) fmt --diff
	$(LINT) run ./...
	go mod tidy -diff

fmt: ## format everything
	$(LINT) fmt

tidy: ## bring go.mod and go.sum up to date
	go mod tidy
	cd tools && go mod tidy

cover: packages ## test coverage over all packages, as coverage.html
	go test -count=1 -coverpkg=./... -coverprofile=coverage.out ./...
	go tool cover -html=coverage.out -o coverage.html
	@go tool cover -func=coverage.out | tail -n 1

packages: ## install what the tests need, if this is Debian and we are root
	@scripts/packages
