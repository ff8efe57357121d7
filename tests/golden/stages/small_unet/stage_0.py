# Stage 0 (of 3, counted from 0) of tests.unit.codegen.models.SmallUNet
#
# recorded  in train mode at batch size 2, capture ecb817fb79a6b865
# plan      6, 15, 10 nodes, cut before enc2_norm, up1
# nodes     enc1_conv … enc2_conv
# takes     image: f32[2,1,8,8] from the caller
# stashes   enc1_drop: f32[2,4,8,8] to stage 2
# hands on  enc2_conv: f32[2,8,4,4] to stage 1

import torch.nn.functional as F


class Stage0:
    def __init__(self, model):
        self.enc1 = model.get_submodule("enc1")
        self.enc2_conv = model.get_submodule("enc2.conv")

    def forward(self, stash, pop, image):
        enc1_drop = self.enc1(image)
        stash("enc1_drop", enc1_drop)
        max_pool2d = F.max_pool2d(enc1_drop, 2)  # models.py:39 in forward
        del enc1_drop
        # in enc2:
        enc2_conv = self.enc2_conv(max_pool2d)  # models.py:18 in forward
        return (enc2_conv,)
