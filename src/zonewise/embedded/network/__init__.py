"""Real packets in an embedded cluster: a network namespace for each node, an address for each pod.

``namespaces`` names, creates and removes namespaces, also those of a program that was killed;
``plan`` decides, ``wiring`` applies it, ``echo`` answers for the pods and ``proxies`` runs the real
proxy of each node. ``network`` is the component that does all this, in the process of the cluster.
"""
