"""Properties: sentences about the policy that hold for whatever hypothesis comes up with."""
