# Stage 2 (of 3, counted from 0) of tests.unit.codegen.models.SmallUNet
#
# recorded  in train mode at batch size 2, capture ecb817fb79a6b865
# plan      6, 15, 10 nodes, cut before enc2_norm, up1
# nodes     up1 … mul_1
# takes     weight: f32[1] from the caller
# takes     dropout: f32[2,8,2,2] from stage 1
# takes     dec2_drop: f32[2,4,4,4] from stage 1
# pops      enc1_drop: f32[2,4,8,8] from stage 0
# returns   mul_1, dropout, enc1_drop, weight

import torch


class Stage2:
    def __init__(self, model):
        self.up1 = model.get_submodule("up1")
        self.dec1 = model.get_submodule("dec1")
        self.head = model.get_submodule("head")
        self.scale = model.get_parameter("scale")
        self.shift = model.get_buffer("shift")

    def forward(self, stash, pop, weight, dropout, dec2_drop):
        up1 = self.up1(dec2_drop)  # models.py:43 in forward
        enc1_drop = pop("enc1_drop")
        cat_1 = torch.cat([up1, enc1_drop], dim=1)
        del up1
        dec1_drop = self.dec1(cat_1)
        del cat_1
        mul = dec1_drop * self.scale  # models.py:44 in forward
        del dec1_drop
        add = mul + self.shift
        del mul
        head = self.head(add)
        del add
        mul_1 = head * weight  # models.py:45 in forward
        return (mul_1, dropout, enc1_drop, weight)
