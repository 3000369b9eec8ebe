/** Builds of a real host agent, for tests. */
import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { after } from 'node:test'
import { HostContractClient } from '@warren/kit/testing/host-contract-client'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import {
  HOST_NETWORK_DEFAULT,
  type HostBuild,
  type HostBuildBody,
  type HostBuildLog,
  type HostBuildStep,
  newId,
  templateImageName,
} from '@warren/protocol'
import { listProcesses, type TestHostAgent } from '../testing/host-agent.ts'

/** Of the base that a host agent prepares first. */
const SIZE = { vcpu: 1, mem_mib: 1024, disk_mib: 10_240 }
const BUILD_LIMIT_MS = 300_000
const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

export const run = (command: string, more: Partial<HostBuildStep> = {}): HostBuildStep => ({
  ...{ kind: 'run', line: 2, text: `RUN ${command}`, env: { PATH }, user: '', workdir: '/' },
  ...{ argv: ['/bin/sh', '-c', command] },
  ...(more as object),
})

export class BuildClient {
  #client: HostContractClient
  readonly #agent: TestHostAgent
  readonly #ids = new Set<string>()
  #addresses = 100

  constructor(agent: TestHostAgent) {
    this.#agent = agent
    this.#client = new HostContractClient(agent.socket)
    after(() => this.#client.close())
  }

  /** After the host agent was killed. */
  async startAgain(): Promise<void> {
    await this.#agent.startAgain()
    this.#client.close()
    this.#client = new HostContractClient(this.#agent.socket)
  }

  get host(): HostContractClient {
    return this.#client
  }

  newAddress(): string {
    return this.#agent.cidr.replace(/\.0\/16$/, `.${++this.#addresses}`)
  }

  newId(): string {
    const id = newId('template')
    this.#ids.add(id)
    return id
  }

  body(steps: HostBuildStep[], more: Partial<HostBuildBody> = {}): HostBuildBody {
    return {
      ...{ attempt: 1, image: 'debian:13', steps, env: {}, notes: [], no_cache: false },
      ...{ cache_owner: `usr_${newId('template').slice(4)}`, ...SIZE, cpu_quota_pct: 200 },
      ...{ ip: this.newAddress(), network: HOST_NETWORK_DEFAULT, bases: [] },
      limits: { steps_ms: scaleLimit(120_000), rootfs_bytes: 5e9, log_bytes: 10 * 1024 * 1024 },
      ...more,
    }
  }

  async start(id: string, body: HostBuildBody): Promise<void> {
    const { status, body: response } = await this.#client.call('startBuild', { id }, body)
    assert.equal(status, 200, JSON.stringify(response))
  }

  async get(id: string): Promise<HostBuild> {
    return (await this.#client.call('getBuild', { id })).body
  }

  async untilEnded(id: string): Promise<HostBuild> {
    return until(
      async () => {
        const build = await this.get(id)
        return build.state !== 'running' && build
      },
      `${id} has ended`,
      BUILD_LIMIT_MS,
    )
  }

  async build(body: HostBuildBody, id = this.newId()): Promise<HostBuild> {
    await this.start(id, body)
    return this.untilEnded(id)
  }

  /** All of it. */
  async log(id: string): Promise<string> {
    let text = ''
    for (let after = 0; ; ) {
      const { body } = await this.#client.call('readBuildLog', { id }, { after })
      const { lines, ended } = body as HostBuildLog
      text += lines.map(({ stream }) => stream).join('')
      after += lines.length
      if (ended || lines.length === 0) return text
    }
  }

  async delete(id: string): Promise<void> {
    assert.equal(await this.#client.codeOf('deleteBuild', { id }), 200)
    this.#ids.delete(id)
  }

  async deleteAll(): Promise<void> {
    for (const id of [...this.#ids]) await this.delete(id)
  }

  async hasImage(id: string): Promise<boolean> {
    const { images } = (await this.#client.call('getHost')).body
    return images.some(({ name }: { name: string }) => name === templateImageName(id))
  }

  /** No VM, no disk of one, no image, no base of one, and no layer that is not in the cache. */
  async checkNothingLeft(id: string): Promise<void> {
    const { dataDir, runDir } = this.#agent
    await until(
      () => listProcesses([runDir]).filter((pid) => isQemu(pid)).length === 0,
      'no QEMU process is left',
      30_000,
    )
    assert.equal(await this.hasImage(id), false)
    assert.deepEqual(readdirSync(path.join(dataDir, 'bodies')), [])
    assert.deepEqual(readdirSync(path.join(dataDir, 'snapshots', 'objects')).sort(), listCachedLayers(dataDir))
    for (const base of readdirSync(path.join(dataDir, 'bases'))) {
      const { imageName } = JSON.parse(readFileSync(path.join(dataDir, 'bases', base, 'manifest.json'), 'utf8'))
      assert.equal(imageName.startsWith('tpl:'), false, `a base of ${imageName} is left`)
    }
    for (const folder of ['roots', 'names', 'building', 'failed']) {
      assert.deepEqual(readdirSync(path.join(dataDir, 'templates', 'images', folder)), [], folder)
    }
  }
}

function listCachedLayers(dataDir: string): string[] {
  const root = path.join(dataDir, 'build-cache')
  const files = readdirSync(root).flatMap((owner) => readdirSync(path.join(root, owner)).map((name) => [owner, name]))
  const entries = files.map(([owner, name]) => JSON.parse(readFileSync(path.join(root, owner!, name!), 'utf8')))
  const layers: { object: string }[] = entries.flatMap((entry) => entry.layers ?? [])
  return [...new Set(layers.map(({ object }) => object))].sort()
}

function isQemu(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('qemu-system')
  } catch {
    return false // It exited meanwhile.
  }
}
