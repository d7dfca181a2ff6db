"""Correctness: every structure of every workload, and programs of odd sizes, under schedules that nobody would choose."""
