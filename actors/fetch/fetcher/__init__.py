"""Fetcher: takes offered slices, reads their windows, publishes their orders, completes them.
`decisions` says what follows an offer and an outcome. `window` reads one window. `lanes` pulls offers."""
