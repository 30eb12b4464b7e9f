"""In place of torchvision, whose wheels want another torch: SGLang imports it for images, which no test has."""
