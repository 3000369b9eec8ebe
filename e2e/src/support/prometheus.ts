/** Starts Debian's Prometheus on loopback, with the configuration of docs/operating.md and one target, for one test. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import type { TestContext } from 'node:test'
import { until } from '@warren/kit/testing/until'

/** The time and the text of the value. */
type Series = { metric: Record<string, string>; value: [number, string] }
export type Prometheus = { query(expression: string): Promise<Series[]> }

export const cannotRunPrometheus: string | false =
  spawnSync('prometheus', ['--version']).status === 0 ? false : 'the Debian package prometheus is not available'

export async function startPrometheus(t: TestContext, target: string): Promise<Prometheus> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-prometheus-'))
  const config = path.join(folder, 'prometheus.yml')
  await writeFile(config, (await readDocumentedConfig()).replace('127.0.0.1:9464', target).replace('15s', '500ms'))
  const address = `127.0.0.1:${await findPort()}`
  const child = spawn(
    'prometheus',
    [
      `--config.file=${config}`,
      `--storage.tsdb.path=${folder}/data`,
      `--web.listen-address=${address}`,
      '--log.level=error',
    ],
    { stdio: ['ignore', 'ignore', 'inherit'] },
  )
  t.after(async () => {
    await stop(child)
    await rm(folder, { recursive: true, force: true })
  })
  await until(async () => (await fetch(`http://${address}/-/ready`).catch(() => undefined))?.ok, 'Prometheus is ready')
  return {
    async query(expression) {
      const response = await fetch(`http://${address}/api/v1/query?${new URLSearchParams({ query: expression })}`)
      const { status, data, error } = (await response.json()) as {
        status: string
        data?: { result: Series[] }
        error?: string
      }
      if (status !== 'success') throw new Error(`Prometheus refuses ${expression}: ${error}`)
      return data!.result
    },
  }
}

async function readDocumentedConfig(): Promise<string> {
  const text = await readFile(new URL('../../../docs/operating.md', import.meta.url), 'utf8')
  return /^```yaml\n(scrape_configs:\n[^`]+)```$/m.exec(text)![1]!
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill()
  await once(child, 'exit')
}

async function findPort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as { port: number }
  server.close()
  await once(server, 'close')
  return port
}
