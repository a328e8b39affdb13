"""Three networks, measured side by side: SSD300, 3D U-Net and ResNet-50."""
