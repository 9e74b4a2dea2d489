"""Volumes: a CSI driver that provisions next to the pod.

``protocol`` (the messages) < ``transport`` (a socket or one process) < ``services`` (the calls) on
``journal`` and ``backends``; ``driver`` puts them together.
"""
