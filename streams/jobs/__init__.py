"""What a stream of jobs needs: one message a job, its moves, its due time, reads that are certain."""
