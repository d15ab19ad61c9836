"""Traces of PyTorch's profiler and its kin (Kineto, MegaScan, ByteDance): from events to the ops of each device.

names     what the name of an event says             calls   pieces of work, in the order of their launch
tables    what is kept of a file, as columns         labelled, unlabelled, told   three ways from there to ops
p2p       sends and receives                         read    one file, or a set of them, to devices
undirected, directions  work that nothing in its own file gives a direction: told by transfers matched across ranks
merged                  files of many ranks, taken apart
straight                transfers of a clock that drifts, before their directions are known
senses                  transfers of which nothing in their own file says which are sends: told likewise
"""
