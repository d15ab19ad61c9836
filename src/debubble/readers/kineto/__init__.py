"""Traces of PyTorch's profiler and its kin (Kineto, MegaScan, ByteDance): from events to the ops of each device.

chrome.py events -> tables, columns by role -> work: pieces, messages, steps -> ops: by ranges, else by runs
                                            -> spans: ops whose own events say which they are
                                            -> ranks: whose they are          read: one file, or a set of them
"""
