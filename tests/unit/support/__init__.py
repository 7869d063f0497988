"""Unit tests of what tests share."""
