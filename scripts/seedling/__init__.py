"""The shipped base model `seedling`: its text (`corpus`) and its training (`pretrain`)."""
