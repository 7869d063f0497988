"""How the mall speaks and behaves as a known platform: one file each, from that platform's documents."""
