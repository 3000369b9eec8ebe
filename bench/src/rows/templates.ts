/** Templates: from the request for a build until the template is ready, and sandboxes that are made from one. */
import { setTimeout as delay } from 'node:timers/promises'
import { compareTimes, rounds, settle, type Timed, time } from '../compare-times.ts'
import type { Measurement, Row, Run } from '../row.ts'
import type { Api } from '../vm/api.ts'
import { buildah } from '../vm/buildah.ts'
import { instance, SMALL } from '../vm/instance.ts'

const BUILDS = 4
const REBUILDS = 20
const CREATES = 50
const POLL_MS = 20
const NOT_COMPARABLE = { whyNot: 'the versions before 0.3 have no templates' }

/** What a build usually does, without the speed of a mirror: many files, a pipe, an archive, users and owners. */
const DOCKERFILE = `FROM debian:13
RUN mkdir /app && for n in $(seq 500); do echo $n > /app/$n; done
RUN seq 100000 | sort -r | sha256sum > /sum
RUN tar -czf /app.tar.gz /app
RUN useradd --create-home app && chown -R app /app
RUN rm /app.tar.gz && echo done > /done
`

export const templateBuildRow: Row = {
  name: 'template-build',
  what: 'five steps of a Dockerfile without a cache, until the template is ready and its bases are booted',
  unit: 'ms',
  baseline: 'buildah bud, same file',
  measure: (run) => measureBuilds(run, BUILDS, { cache: false }),
  comparison: NOT_COMPARABLE,
}

export const templateRebuildRow: Row = {
  name: 'template-rebuild',
  what: 'the same Dockerfile again, with every step in the cache',
  unit: 'ms',
  baseline: 'buildah bud --layers',
  target: { p50: '<=', value: 2_000 },
  measure: (run) => measureBuilds(run, REBUILDS, { cache: true }),
  comparison: NOT_COMPARABLE,
}

export const templateCreateRow: Row = {
  name: 'template-create',
  what: `POST /v1/sandboxes (${SMALL}) from a template, and its first exec`,
  unit: 'ms',
  baseline: 'the same from debian:13',
  target: { ratio: '<=', value: 1.1 },
  measure: measureCreates,
  comparison: NOT_COMPARABLE,
}

async function measureBuilds(run: Run, count: number, { cache }: { cache: boolean }): Promise<Measurement> {
  const { api } = await run.open(instance)
  const bud = await run.open(buildah)
  // With a cache, a template stays so that its image exists: a rebuild gives it another name.
  const first = cache ? await build(run, api, DOCKERFILE, { cache }) : undefined
  if (cache) await bud(DOCKERFILE, { cache })
  const buildOne = async (): Promise<Timed> => {
    let id: string | undefined
    const timed = await time(run, async () => {
      id = await build(run, api, DOCKERFILE, { cache })
    })
    if (id !== undefined) await api.send('DELETE', `/v1/templates/${id}`)
    return timed
  }
  const measured = await compareTimes(run, buildOne, () => time(run, () => bud(DOCKERFILE, { cache })), {
    rounds: rounds(run, count),
    settle: () => settle(run),
  })
  if (first !== undefined) await api.send('DELETE', `/v1/templates/${first}`)
  return measured
}

async function measureCreates(run: Run): Promise<Measurement> {
  const { api } = await run.open(instance)
  const template = await build(run, api, DOCKERFILE, { cache: true })
  const createOne = async (rootfs: string): Promise<Timed> => {
    let id: string | undefined
    const timed = await time(run, async () => {
      id = (await api.create(SMALL, { rootfs })).id
      await api.exec(id, 'true')
    })
    if (id !== undefined) void api.delete(id).catch(() => {}) // Everything that remains is deleted at the end of the run.
    return timed
  }
  return compareTimes(
    run,
    () => createOne(template),
    () => createOne('debian:13'),
    { rounds: rounds(run, CREATES), settle: () => settle(run) },
  )
}

/** Returns the id of the template once it is ready. */
async function build(run: Run, api: Api, dockerfile: string, { cache }: { cache: boolean }): Promise<string> {
  const body = { name: 'bench', dockerfile, no_cache: !cache }
  const { id } = await api.post<{ id: string }>('/v1/templates', body)
  for (;;) {
    const template = await api.send<{ status: string; failure_reason?: string }>('GET', `/v1/templates/${id}`)
    if (template.status === 'ready') return id
    if (template.status === 'failed') throw new Error(`the build failed: ${template.failure_reason}`)
    await delay(POLL_MS, undefined, { signal: run.signal })
  }
}
