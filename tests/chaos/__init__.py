"""Attacks on a whole installation, judged by what it leaves behind; `just chaos` runs the long forms."""
