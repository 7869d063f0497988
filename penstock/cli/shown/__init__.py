"""How a command shows what it found: lines, bars, charts and tables that change."""
