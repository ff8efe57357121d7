# Stage 1 (of 3, counted from 0) of tests.unit.codegen.models.SmallUNet
#
# recorded  in train mode at batch size 2, capture ecb817fb79a6b865
# plan      6, 15, 10 nodes, cut before enc2_norm, up1
# nodes     enc2_norm … dec2_drop
# takes     enc2_conv: f32[2,8,4,4] from stage 0
# hands on  dropout: f32[2,8,2,2] to stage 2
# hands on  dec2_drop: f32[2,4,4,4] to stage 2

import torch
import torch.nn.functional as F


class Stage1:
    def __init__(self, model, keyed):
        self.enc2_norm = model.get_submodule("enc2.norm")
        self.enc2_drop = model.get_submodule("enc2.drop")
        self.mid = model.get_submodule("mid")
        self.up2 = model.get_submodule("up2")
        self.dec2 = model.get_submodule("dec2")
        self.keyed = keyed

    def forward(self, stash, pop, enc2_conv):
        # in enc2:
        enc2_norm = self.enc2_norm(enc2_conv)  # models.py:18 in forward
        relu_1 = F.relu(enc2_norm)
        del enc2_norm
        enc2_drop = self.enc2_drop(relu_1)
        del relu_1
        # in the model:
        max_pool2d_1 = F.max_pool2d(enc2_drop, 2)  # models.py:40 in forward
        mid_drop = self.mid(max_pool2d_1)
        del max_pool2d_1
        with self.keyed("#0", 0):
            dropout = F.dropout(mid_drop, p=0.1)  # models.py:41 in forward
        del mid_drop
        up2 = self.up2(dropout)  # models.py:42 in forward
        cat = torch.cat([up2, enc2_drop], dim=1)
        del enc2_drop, up2
        dec2_drop = self.dec2(cat)
        return (dropout, dec2_drop)
