"""maskwright inside other libraries; each module here imports the library it is named after."""
