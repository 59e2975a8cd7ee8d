"""The names of the engine: requests, scheduler, the batch of a step, and the model."""

from pa_tutorial.index.entry import Symbol, VllmFile, cells_of, lines_of

llm = lines_of("pa_tutorial/engine/llm.py")
engine = lines_of("pa_tutorial/engine/engine.py")
request = lines_of("pa_tutorial/engine/request.py")
scheduler = lines_of("pa_tutorial/engine/scheduler.py")
batch = lines_of("pa_tutorial/engine/batch.py")
runner = lines_of("pa_tutorial/engine/runner.py")
model = lines_of("pa_tutorial/engine/model.py")
sampling = lines_of("pa_tutorial/engine/sampling.py")
table = lines_of("pa_tutorial/paging/block_table.py")
nb16 = cells_of("16_serving_engine")

ONE_REQUEST = nb16('print("step  positions   slots")')
BATCH_OF_TWO = nb16("batch = build_batch(film.engine.scheduler.plan)\ntitle")
CHUNK = nb16('print("slots written for b:"')
TIMELINE = nb16("film = serve(num_blocks=64, token_budget=16)")
PREEMPTED = nb16("film = serve(num_blocks=13, token_budget=16)")
SAMPLES = nb16("three = SamplingParams(")
MODEL = nb16("config = transformers.Qwen2Config(")

LLM_FILE = (
    Symbol(
        "`LLM.generate`",
        "prompts in, completions out",
        llm("def generate("),
        nb16("llm = LLM(num_blocks=40"),
    ),
)
LLM_ENGINE = (
    Symbol("`add_request`", "let a request wait for its turn", engine("    def add("), ONE_REQUEST),
    Symbol(
        "`step`", "schedule, run the model, choose tokens", engine("    def step("), ONE_REQUEST
    ),
)
SEQUENCE = (
    Symbol(
        "`SequenceGroup`", "one request, with all its samples", request("class Request:"), SAMPLES
    ),
    Symbol("`Sequence`", "one answer in the making", request("class Sequence:"), SAMPLES),
)
SCHEDULER = (
    Symbol(
        "`SchedulingBudget`, `max_num_batched_tokens`",
        "tokens that one step computes, at most",
        scheduler("        token_budget: int = 256,"),
        TIMELINE,
    ),
    Symbol("`schedule`", "who computes in this step", scheduler("    def schedule("), TIMELINE),
    Symbol(
        "`_schedule_prefills`",
        "lets waiting sequences in, the oldest first",
        scheduler("if self.can_schedule(sequence) is not Admission.NOW:"),
        TIMELINE,
    ),
    Symbol(
        "`_schedule_chunked_prefill`",
        "prompts in parts, beside the decode steps of others",
        scheduler("rest = rest[: num_cached + min(budget, self.chunk_size)]"),
        CHUNK,
    ),
    Symbol(
        "`_preempt_by_recompute`",
        "the youngest gives up its blocks, and waits",
        scheduler("    def preempt("),
        PREEMPTED,
    ),
    Symbol("`fork`", "more samples of one prompt", scheduler("    def fork("), SAMPLES),
)
RUNNER = (
    Symbol(
        "`ModelInputForCPUBuilder.build`",
        "the tensors of a step",
        batch("def build_batch("),
        BATCH_OF_TWO,
    ),
    Symbol(
        "`_compute_prompt_input_tokens`, `_compute_decode_input_tokens`",
        "token ids, positions and slots of each sequence",
        batch("input_ids += scheduled.sequence.token_ids[first:last]"),
        (*BATCH_OF_TWO, *CHUNK),
    ),
    Symbol(
        "`make_tensor_with_pad`",
        "block tables in one tensor, padded with 0",
        table("def padded_block_tables("),
        BATCH_OF_TWO,
    ),
    Symbol(
        "`CPUModelRunner.execute_model`",
        "copies blocks, then the model",
        runner("    def run("),
        nb16("for stage in ("),
    ),
)
MODELS = (
    Symbol(
        "`Qwen2ForCausalLM.forward`",
        "the layers around attention",
        model("    def run("),
        MODEL,
    ),
    Symbol(
        "`Attention.forward`",
        "writes K and V, then prefill and decode",
        runner("    def attention("),
        MODEL,
    ),
)
SAMPLER = (
    Symbol(
        "`_apply_top_k_top_p`", "which tokens may be drawn", sampling("def probabilities("), SAMPLES
    ),
    Symbol("`Sampler.forward`", "the next token", sampling("def choose_token("), SAMPLES),
)

VERSION = "version 0"
ENGINE = (
    VllmFile("vllm/entrypoints/llm.py", VERSION, LLM_FILE),
    VllmFile("vllm/engine/llm_engine.py", VERSION, LLM_ENGINE),
    VllmFile("vllm/sequence.py", VERSION, SEQUENCE),
    VllmFile("vllm/core/scheduler.py", VERSION, SCHEDULER),
    VllmFile("vllm/worker/cpu_model_runner.py", VERSION, RUNNER),
    VllmFile("vllm/model_executor/models/qwen2.py", VERSION, MODELS),
    VllmFile("vllm/model_executor/layers/sampler.py", VERSION, SAMPLER),
)
