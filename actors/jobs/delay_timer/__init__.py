"""Delay timer: makes delayed jobs ready at their due time, to the millisecond.

`timer` is where to start reading; `partitions` says which timer fires which jobs; the rules are in model/due_times.py.
"""
