"""Delay timer: makes delayed jobs ready at their due time, to the millisecond.

Start reading at `timer`. `partitions` decides which timer fires which jobs. The rules are in
actors/jobs/rules/due_times.py.
"""
