# The two commands of the README are `make demo` and `make test`. Each sets up what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# One configuration for every target, wherever make was started from.
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
PYTEST := pytest

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: setup
setup: ## apt packages and the locked virtual environment
	@scripts/setup

.PHONY: demo
demo: setup ## railweld up on lab nodes, with Go to the cluster and its jobs; again, and what was proved
	@scripts/demo

.PHONY: test
test: setup lint ## the gate: lint, types, unit tests, every role's default scenario, one chain through the lab
	@$(PYTEST) tests/unit tests/integration tests/roles tests/e2e -m "not deep"

.PHONY: lint
lint: setup ## ruff, mypy, yamllint, ansible-lint, shellcheck
	ruff check .
	ruff format --check .
	mypy
	cd pulumi && MYPYPATH=.:policy mypy --config-file ../pyproject.toml program.py components policy/analyzer.py
	yamllint --strict .
	ansible-lint --offline --strict
	shellcheck scripts/* .ci/run src/railweld/bench/data/*.sh

.PHONY: unit
unit: setup ## unit tests only
	@$(PYTEST) tests/unit

.PHONY: test-roles
test-roles: setup ## deep suite: every scenario of every role
	@$(PYTEST) tests/roles $(if $(ROLE),-k "[$(ROLE)]")

.PHONY: test-e2e
test-e2e: setup ## deep suite: whole sites of other kinds than the gate's chain
	@$(PYTEST) tests/e2e -m deep

.PHONY: test-faults
test-faults: setup ## deep suite: every fault of the base stage, end to end on lab nodes
	@$(PYTEST) tests/integration/lab/test_faults.py tests/faults

.PHONY: test-upgrade
test-upgrade: setup ## deep suite: a100-2023 to current and back
	@$(PYTEST) tests/upgrade

.PHONY: test-fabric
test-fabric: setup ## deep suite: the fabric stage against virtual switches
	@$(PYTEST) tests/integration/fabric

.PHONY: test-cluster
test-cluster: setup ## deep suite: kubeadm on lab nodes, the stack on a real API server
	@$(PYTEST) tests/integration/cluster tests/integration/stack

.PHONY: test-slurm
test-slurm: setup ## deep suite: Slurm on lab nodes, jobs that run through every change
	@$(PYTEST) tests/integration/slurm

.PHONY: test-browser
test-browser: setup ## deep suite: the report in a headless Chromium (needs: apt-get install chromium)
	@$(PYTEST) tests/browser

.PHONY: test-proof
test-proof: setup ## deep suite: railweld up on a lab, and every fault against verify and doctor
	@$(PYTEST) tests/proof

.PHONY: test-bridge
test-bridge: setup ## deep suite: real Slurm, a real control plane and the bridge between them
	@$(PYTEST) tests/integration/bridge

.PHONY: bench
bench: setup ## measurements, printed as the tables of docs/benchmarks.md
	@python -m tests.bench

.PHONY: docs
docs: setup ## generated references and schemas
	@python -m railweld.site.schema

.PHONY: clean
clean: ## take the lab down and remove build results; caches stay
	@-railweld lab down
	rm -rf .mypy_cache .ruff_cache .pytest_cache dist build
