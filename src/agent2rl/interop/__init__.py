"""Exports of tasks for other frameworks: Harbor and verifiers."""
