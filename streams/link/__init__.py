"""The link to the server: its bytes, requests and answers, and what it tells of the server's clock and health."""
