"""Loading models, rendering chats, sampling, the refusal detector."""
