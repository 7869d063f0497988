"""Tests of how claims are measured."""
