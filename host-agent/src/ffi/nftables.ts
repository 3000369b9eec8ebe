/**
 * libnftables: commands as text in, results as text out, one call is one transaction. A context keeps acting on the
 * network namespace in which it was created.
 */
import koffi from 'koffi'

const LIBRARY = 'libnftables.so.1'
const STATELESS = 1 << 2
const HANDLES = 1 << 3
const JSON_OUTPUT = 1 << 4
/** Without the elements of sets. */
const TERSE = 1 << 11

type Library = ReturnType<typeof bind>
let library: Library | undefined

export class Nft implements Disposable {
  readonly #library: Library
  readonly #context: unknown

  constructor() {
    library ??= bind()
    this.#library = library
    const context: unknown = this.#library.create(0)
    if (context === null) throw new Error('failed to create an nftables context; the kernel needs nf_tables')
    this.#context = context
    this.#library.bufferOutput(context)
    this.#library.bufferError(context)
  }

  /** Runs all commands of `text` or, when one fails, none. */
  run(text: string): string {
    const failed = this.#library.run(this.#context, text) !== 0
    const output: string = this.#library.output(this.#context) ?? ''
    const errors: string = this.#library.error(this.#context) ?? ''
    if (failed) throw new Error(`nftables rejected a command: ${errors.trim() || 'no reason given'}\n${text}`)
    return output
  }

  /** The objects of nft's JSON output, without the first one, which describes the program. */
  list(what: string): Record<string, unknown>[] {
    this.#library.setFlags(this.#context, JSON_OUTPUT)
    try {
      const { nftables } = JSON.parse(this.run(`list ${what}`)) as { nftables: Record<string, unknown>[] }
      return nftables.filter((one) => !('metainfo' in one))
    } finally {
      this.#library.setFlags(this.#context, 0)
    }
  }

  /**
   * As text, without counts and the elements of named sets, which packets change. `handles`: with the numbers that the
   * kernel gave to rules and sets.
   */
  listRules(what: string, { handles = false } = {}): string {
    this.#library.setFlags(this.#context, STATELESS | TERSE | (handles ? HANDLES : 0))
    try {
      return this.run(`list ${what}`)
    } finally {
      this.#library.setFlags(this.#context, 0)
    }
  }

  [Symbol.dispose](): void {
    this.#library.free(this.#context)
  }
}

function bind() {
  let nft: ReturnType<typeof koffi.load>
  try {
    nft = koffi.load(LIBRARY)
  } catch (error) {
    throw new Error(`failed to load ${LIBRARY}; install the Debian package libnftables1`, { cause: error })
  }
  return {
    create: nft.func('void *nft_ctx_new(uint32_t flags)'),
    free: nft.func('void nft_ctx_free(void *context)'),
    bufferOutput: nft.func('int nft_ctx_buffer_output(void *context)'),
    bufferError: nft.func('int nft_ctx_buffer_error(void *context)'),
    setFlags: nft.func('void nft_ctx_output_set_flags(void *context, unsigned int flags)'),
    output: nft.func('str nft_ctx_get_output_buffer(void *context)'),
    error: nft.func('str nft_ctx_get_error_buffer(void *context)'),
    run: nft.func('int nft_run_cmd_from_buffer(void *context, str text)'),
  }
}
