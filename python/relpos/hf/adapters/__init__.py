"""One file for each family of models; relpos.hf.linearize finds them by being here.

A file holds ADAPTERS, a list of relpos.hf._adapter.Adapter, or LACKING, a dict of attention
classes whose scheme relpos does not have and the reason. An adapter goes before a reason, so that
a new scheme brings its file and nothing else is edited.
"""
