"""The cluster stack: every add-on as a pure function from typed arguments to Kubernetes objects.

`railweld.stack.graph` puts them together for a site. The Pulumi program in pulumi/ makes resources
of the same objects, and `railweld stack render` prints them.
"""
