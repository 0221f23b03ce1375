# Everything a developer does here. `make` alone says what there is.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The race detector needs a C compiler; without one the tests run without it, and say so. SQLite, whose C has its own locks, is
# translated to Go: watching each of its memory accesses makes it twenty times as slow, and finds nothing of ours.
RACE = $(if $(shell command -v gcc),-race $(foreach p,sqlite/lib libc memory,'-gcflags=modernc.org/$(p)=-race=false -d=checkptr=0 -dwarf=false'),\
$(warning no gcc: the tests run without the race detector))
# The linter's own module stands outside the workspace, in which -modfile is not allowed.
LINT = $$(GOWORK=off go tool -modfile=$(CURDIR)/tools/go.mod -n golangci-lint)
# Modules of their own beside the library; the benchmark is one too.
MODULES = adapter/enttx adapter/examples adapter/gormtx adapter/pgxtx adapter/sqlxtx dburl demo internal/signals console/browser cmd/bluecone relay relay/kafka relay/nats relay/rabbitmq relay/redis relay/rocketmq ledger
# Those whose tests mostly wait, for brokers, databases and processes, the longest first; and how many of its tests run at once.
WAITING = demo:4 ledger:2 relay/kafka:2 cmd/bluecone:8 relay/rocketmq:2 relay/rabbitmq:2 console/browser:2 relay/nats:2 relay/redis:2 relay:2 \
	adapter/pgxtx:2 adapter/enttx:2 adapter/gormtx:2 adapter/sqlxtx:2 adapter/examples:2 dburl:2 internal/signals:2

.PHONY: help demo test test-databases test-brokers test-short test-crash test-teeth fuzz soak bench bench-quick lint release vuln fmt tidy cover cover-rooms packages

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## the demo: twelve scenarios on an embedded database (go run ./demo/bluecone)
	go run ./demo/bluecone

# A first run compiles for a fifth of its time. -trimpath: what internal/release and the linter compile, in other folders, they share
# with the tests. -dwarf=false: the compiler takes a sixth less, and nobody debugs these programs. GOGC: a fifth less. -O0: gorm's driver
# of SQLite brings one in C, which nobody calls.
test lint: export GOFLAGS += -trimpath -gcflags=all=-dwarf=false
test lint: export GOGC := 400
test lint: export CGO_CFLAGS := -O0
test: export GOFLAGS += -vet=off # make lint vets
test: export GORACE := atexit_sleep_ms=0 # each process would wait for a second before it exits, and tests start hundreds
test: packages ## all tests on MariaDB, MySQL 9, PostgreSQL and SQLite, with the race detector
	GOGC=100 go test -count=1 -timeout 60m ./internal/attack ./internal/simulation ./internal/model ./internal/teeth # without -race: they measure memory, or compute much; first: what they compile is shared
	cd ledger && go test -count=1 -timeout 60m -run 'EverySequence|EveryCallMayDie|MillionsOfEntries' . # likewise
	go test $(RACE) -count=1 -p 3 -parallel 4 -timeout 60m ./outbox ./internal/release ./... # tests wait for servers more than they compute; the longest first
	printf '%s %s\n' $(subst :, ,$(WAITING)) | xargs -P 3 -L 1 $(SHELL) -c "cd \$$0 && go test $(RACE) -count=1 -parallel \$$1 -timeout 60m ./..."
	cd bench && go vet . && go test -count=1 .

test-databases: packages ## the contract suite on the newest PostgreSQL and MariaDB, too
	scripts/test-databases

test-brokers: packages ## every adapter for a broker through its whole suite: kills, freezes of 30 s, cuts
	for dir in relay/kafka relay/nats relay/rabbitmq relay/redis relay/rocketmq; do (cd $$dir && BLUECONE_TEST_BROKERS=whole BLUECONE_TEST_BROKERS_PATIENCE=10m \
	go test -count=1 -timeout 2h ./...) || exit 1; done

test-short: ## the same on SQLite only, without the long ones
	go test -short ./...
	for dir in adapter/*/; do (cd $$dir && go test -short ./...) || exit 1; done
	cd demo && go test -short ./...
	cd cmd/bluecone && go test -short ./...

soak: packages ## three instances and faults of every kind for SOAK=10m, on DB=mysql or postgres or both, from SEED; PROFILE=restarts or kills: two that are killed; PROFILE=services: two services and each broker; PROFILE=points: the points move out; PROFILE=ledger: three instances of the ledger
ifeq ($(PROFILE),kills)
	cd demo && BLUECONE_TEST_REQUIRE=mysql,postgres BLUECONE_TEST_KILLS=$(or $(SOAK),1m) BLUECONE_TEST_SOAK_DB=$(DB) \
	go test -count=1 -v -timeout 1h -run '^TestTheDemoUnderKillsIsSoonQuiet$$' ./bluecone
else ifeq ($(PROFILE),services)
	cd demo && BLUECONE_TEST_REQUIRE=sqlite,postgres,mysql,mysql9,nats,redis,rabbitmq,kafka,rocketmq BLUECONE_TEST_SERVICES=$(or $(SOAK),10m) \
	go test -count=1 -v -timeout 2h -run '^TestTwoServicesUnderKills$$' ./bluecone
else ifeq ($(PROFILE),points)
	cd demo && BLUECONE_TEST_REQUIRE=sqlite,postgres,mysql,mysql9 BLUECONE_TEST_POINTS=$(or $(SOAK),10m) \
	go test -count=1 -v -timeout 2h -run '^TestPointsMoveOutUnderKills$$' ./bluecone
else ifeq ($(PROFILE),ledger)
	cd ledger && BLUECONE_TEST_REQUIRE=mysql,postgres BLUECONE_TEST_LEDGER_SOAK=$(or $(SOAK),10m) BLUECONE_TEST_SOAK_DB=$(DB) \
	go test -count=1 -v -timeout 2h -run '^TestLedgerUnderKillsFreezesAndCuts$$' ./remote
else ifeq ($(PROFILE),restarts)
	BLUECONE_TEST_REQUIRE=mysql,postgres BLUECONE_TEST_RESTARTS=$(or $(SOAK),10m) BLUECONE_TEST_SOAK_DB=$(DB) \
	go test -count=1 -v -timeout 4h -parallel 1 -run '^TestTwoInstancesThatSaveInTurnAndAreKilledKeepTheOrder$$' ./internal/restart
else
	cd demo && BLUECONE_TEST_REQUIRE=mysql,postgres BLUECONE_TEST_SOAK=$(or $(SOAK),10m) BLUECONE_TEST_SOAK_DB=$(DB) BLUECONE_TEST_SEED=$(SEED) \
	BLUECONE_TEST_FREEZE=1m BLUECONE_TEST_SOAK_WRITE=$(CURDIR)/docs/measurements/soak.md \
	go test -count=1 -v -timeout 4h -run '^TestSoak_ThreeInstances$$|^TestInstancesOutliveTheirDatabase$$' ./bluecone
endif

test-crash: packages ## kill, freeze and cut off a process at every point of its life, on MariaDB and PostgreSQL
	BLUECONE_TEST_REQUIRE=mysql,postgres BLUECONE_TEST_CRASH=all BLUECONE_TEST_REPORT=$(CURDIR)/docs/measurements/crash-points.md go test -count=1 -v -parallel 8 -timeout 1h -run TestEveryPointSurvives ./internal/crash

test-teeth: packages ## break every promise on purpose, and see which test notices
	go run ./internal/teeth -write docs/measurements/teeth.md

fuzz: ## every fuzz target, FUZZ=30s each
	@for file in $$(grep -rl --include='*_test.go' '^func Fuzz' .); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\).*/\1/p' $$file); do \
			echo "$$target in $$(dirname $$file)"; \
			(cd $$(dirname $$file) && go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(or $(FUZZ),30s) .) || exit 1; \
		done; \
	done

bench: packages ## W1 to W6 beside the limit and the peers, hours; writes docs/measurements/benchmark.md; BENCH="-w W1 -db mysql" measures a part again
	cd bench && go run . -write ../docs/measurements/benchmark.md $(BENCH)

bench-quick: packages ## the same in three minutes, to see the direction; BENCH="-w W1 -db mysql" chooses
	cd bench && go run . -quick $(BENCH)

bench-console: packages ## every page of the console on a million events: time and connections
	BLUECONE_TEST_MEASURE=1 go test -count=1 -v -timeout 60m -run TestConsoleOnAMillionEvents ./console

screenshots: packages ## the pictures of docs/console.md, of the demo's own data
	cd console/browser && go run ./screenshots -out ../../docs/console

lint: ## formatting, golangci-lint, generated code being current, and go.mod being tidy
	$(LINT) fmt --diff
	$(LINT) run ./... $(MODULES:%=./%/...) # all at once: what they share is looked at once
	go vet ./... $(MODULES:%=./%/...) # not by the linter, which would look at each function of each dependency without a cache
	cd ledger/tools && GOWORK=off go run . && git diff --exit-code -- ../ledgerv1
	scripts/tidy -diff

release: ## versions and tags of VERSION=v0.1.0 in this clone, after a test of what they give; pushes nothing
	scripts/release $(VERSION)

vuln: ## known vulnerabilities of what we depend on; says so where their database cannot be reached
	@code=0; out=$$(go run golang.org/x/vuln/cmd/govulncheck@v1.1.4 ./... $(addsuffix /...,$(addprefix ./,$(MODULES))) 2>&1) || code=$$?; \
	if [[ $$out == *"fetching vulnerabilities"* ]]; then echo "vuln: the vulnerability database cannot be reached from here: NOTHING WAS CHECKED"; \
	else echo "$$out"; exit $$code; fi

fmt: ## format everything
	$(LINT) fmt

tidy: ## bring go.mod and go.sum up to date
	scripts/tidy
	cd tools && GOWORK=off go mod tidy

cover: packages ## test coverage over all packages, as coverage.html
	go test -count=1 -coverpkg=./... -coverprofile=coverage.out ./...
	go tool cover -html=coverage.out -o coverage.html
	@go tool cover -func=coverage.out | tail -n 1

cover-rooms: ## what the tests beside each room of the engine, the store and the façades cover, on SQLite; below 80 % is an error
	scripts/cover-rooms

packages: ## install what the tests need, if this is Debian and we are root
	@scripts/packages
