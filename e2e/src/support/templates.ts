/** Building templates with plain requests. */
import assert from 'node:assert/strict'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { readNdjson, type TemplateLogFrame, type TemplateView } from '@warren/protocol'
import { requestOk, type Target } from './sandboxes.ts'

/** Generous: emulated VMs on a busy machine are slow. */
const BUILD_LIMIT_MS = scaleLimit(5 * 60_000)

export function templateClient(warren: Target) {
  async function* openLog(id: string, query: string, signal: AbortSignal): AsyncGenerator<TemplateLogFrame, void> {
    const { baseUrl, key } = warren.instance
    const url = `${baseUrl}/v1/templates/${id}/logs?${query}`
    const response = await fetch(url, { headers: { 'x-api-key': key }, signal })
    assert.equal(response.status, 200)
    for await (const frame of readNdjson(response.body!)) yield frame as TemplateLogFrame
  }
  const limit = () => AbortSignal.timeout(BUILD_LIMIT_MS)
  const client = {
    get: async (idOrName: string): Promise<TemplateView> =>
      (await requestOk(warren, 'GET', `/templates/${idOrName}`)) as TemplateView,

    submit: async (name: string, dockerfile: string, more: object = {}): Promise<TemplateView> =>
      (await requestOk(warren, 'POST', '/templates', { name, dockerfile, ...more })) as TemplateView,

    delete: (idOrName: string) => requestOk(warren, 'DELETE', `/templates/${idOrName}`),

    /** Every frame until the end of the log. */
    async readLog(id: string, query = ''): Promise<TemplateLogFrame[]> {
      return Array.fromAsync(openLog(id, query, limit()))
    },

    /** The text of the log. */
    readText: async (id: string): Promise<string> => textOf(await client.readLog(id)),

    /** Fails with the log if the build fails. */
    async untilReady(id: string): Promise<TemplateView> {
      const frames = await client.readLog(id, 'follow=true')
      assert.deepEqual(frames.at(-1), { final: true, status: 'ready' }, textOf(frames))
      return client.get(id)
    },

    async build(name: string, dockerfile: string, more: object = {}): Promise<TemplateView> {
      return client.untilReady((await client.submit(name, dockerfile, more)).id)
    },

    /** Reads the log of a running build until it has this line. */
    async untilLogged(id: string, line: string): Promise<void> {
      for await (const frame of openLog(id, '', limit())) {
        if (!('final' in frame) && frame.line === line) return
      }
      assert.fail(`the build of ${id} ended without the line ${line}`)
    },
  }
  return client
}

export const textOf = (frames: TemplateLogFrame[]): string =>
  frames.map((frame) => ('final' in frame ? '' : frame.stream)).join('')

/** How often steps were taken from the cache, and run. */
export const countSteps = (log: string): { cached: number; run: number } => ({
  cached: log.match(/^#\d+ CACHED$/gm)?.length ?? 0,
  run: log.match(/^#\d+ DONE [\d.]+s$/gm)?.length ?? 0,
})
