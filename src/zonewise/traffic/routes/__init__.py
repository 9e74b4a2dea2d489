"""Where a connection goes: the routes of every frontend of a Service, on every node. Pure.

``choice`` decides which endpoints traffic of a Service uses, ``endpoints`` and ``frontends`` read
slices and Services as a proxy does, ``claims`` decides which Service owns a frontend that several
name, ``service`` combines them into routes, ``table`` has the types of the result, and ``flow``
adds up what all proxies do. Proxies, ``zonewise explain`` and simulated clients use it.
"""
