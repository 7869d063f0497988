"""Pure rules: standard library and msgspec only."""
