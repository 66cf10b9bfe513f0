"""One file for each family of models; relpos.hf.fuse reads all files of this folder.

A file has ADAPTERS, a list of relpos.hf._adapter.Adapter, so that a new file is enough for a new
family. NO_ATTENTION lists classes whose names have the word Attention and which compute none.
"""
