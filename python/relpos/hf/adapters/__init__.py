"""One file for each family of models; relpos.hf.fuse reads all files of this folder.

A file has ADAPTERS, a list of relpos.hf._adapter.Adapter, or LACKING, a dict of attention classes
whose scheme relpos does not have, with the reason. An adapter takes precedence over a reason, so
that a new file is enough for a new scheme. NO_ATTENTION lists classes whose names have the word
Attention and which compute none.
"""
