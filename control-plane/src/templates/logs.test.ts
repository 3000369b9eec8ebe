import assert from 'node:assert/strict'
import { once } from 'node:events'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { NdjsonDecoder, TemplateLogFrame, type TemplateLogLine } from '@warren/protocol'
import { Value } from 'typebox/value'
import { listenOn, type TestUser } from '../testing/app.ts'
import { openStream } from '../testing/process-lines.ts'
import { templateApi } from '../testing/templates.ts'
import { createHostedApp } from '../testing/with-host.ts'

const hosted = await createHostedApp()
const { app, deps, host, user, send } = hosted
const { dockerfile, start, build, untilStatus } = templateApi(hosted)
const { port } = await listenOn(app)

test.beforeEach(() => {
  host.hooks = {}
})

const open = (who: TestUser, path: string) => openStream(port, `/v1/templates/${path}`, who.headers)

async function readFrames(stream: AsyncIterable<Buffer>): Promise<TemplateLogFrame[]> {
  const decoder = new NdjsonDecoder()
  const frames: TemplateLogFrame[] = []
  for await (const chunk of stream) {
    for (const value of decoder.push(chunk)) {
      assert.ok(Value.Check(TemplateLogFrame, value), JSON.stringify(value))
      frames.push(value)
    }
  }
  return frames
}
const read = async (who: TestUser, path: string) => readFrames(await open(who, path))
const linesOf = (frames: TemplateLogFrame[]) => frames.filter((one): one is TemplateLogLine => 'line' in one)
const textsOf = (frames: TemplateLogFrame[]) => linesOf(frames).map(({ line }) => line)

test('the log of a finished build is kept, by id or name; `follow` adds the final status', async () => {
  const ada = await user()
  const id = await build(ada, dockerfile('RUN echo one; echo two', 'EXPOSE 80'))

  const response = await open(ada, `${id}/logs`)
  const frames = await readFrames(response)
  const followed = await read(ada, 'tools/logs?follow=true')

  assert.deepEqual(
    [response.statusCode, response.headers['content-type'], response.headers['cache-control']],
    [200, 'application/x-ndjson', 'no-store'],
  )
  assert.deepEqual(textsOf(frames), [
    'line 3, EXPOSE: no effect, every port of a sandbox can be reached through a tunnel or ingress',
    '#1 [1/1] RUN echo one; echo two',
    'one',
    'two',
    '#1 DONE 0.0s',
  ])
  const { ts, ...third } = linesOf(frames)[2]!
  assert.deepEqual(third, { stream: 'one\n', line: 'one', attempt: 1, number: 3 })
  assert.ok(Math.abs(Date.parse(ts) - Date.now()) < 600_000)
  assert.deepEqual(followed, [...frames, { final: true, status: 'ready' }])
})

test('lines are sent while the build runs, and a reader from before the start gets them all', async () => {
  const ada = await user()
  const [submitted, second] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  host.hooks = {
    beforeBuild: () => submitted.promise,
    beforeBuildStep: (_id, step) => (step.text === 'RUN echo two' ? second.promise : undefined),
  }
  const id = await start(ada, dockerfile('RUN echo one', 'RUN echo two'))

  const response = await open(ada, `${id}/logs?follow=true`)
  const frames: TemplateLogFrame[] = []
  const decoder = new NdjsonDecoder()
  response.on('data', (chunk) => frames.push(...(decoder.push(chunk) as Iterable<TemplateLogFrame>)))
  assert.deepEqual(frames, [])
  submitted.resolve()
  await until(() => textsOf(frames).includes('one'), 'the first line arrived')
  assert.ok(!textsOf(frames).includes('two'))
  second.resolve()
  await once(response, 'end')

  assert.deepEqual(frames.at(-1), { final: true, status: 'ready' })
  assert.ok(textsOf(frames).includes('two'))
})

test('a failed build ends with its reason and `failed`', async () => {
  const ada = await user()
  const id = await start(ada, dockerfile('RUN echo before; exit 7'))

  const frames = await read(ada, `${id}/logs?follow=true`)

  assert.deepEqual(textsOf(frames).slice(-2), [
    'before',
    'ERROR: RUN echo before; exit 7 ended with exit code 7 (line 2)',
  ])
  assert.deepEqual(frames.at(-1), { final: true, status: 'failed' })
  assert.equal(textsOf(frames).filter((line) => line.startsWith('ERROR')).length, 1)
})

test('reading continues after any line', async () => {
  const ada = await user()
  const id = await build(ada, dockerfile('RUN echo 1; echo 2; echo 3'))
  const all = linesOf(await read(ada, `${id}/logs`))

  for (const { number } of all) {
    assert.deepEqual(linesOf(await read(ada, `${id}/logs?after=${number}`)), all.slice(number))
  }
  assert.deepEqual(await read(ada, `${id}/logs?after=9999&follow=true`), [{ final: true, status: 'ready' }])
  assert.equal((await send('GET', `/v1/templates/${id}/logs?after=-1`, ada)).status, 400)
})

test('an interrupted build is tried again; the log has both attempts, and each alone', async () => {
  const ada = await user()
  let steps = 0
  host.hooks = { beforeBuildStep: () => (steps++ === 0 ? new Promise(() => {}) : undefined) }
  const id = await start(ada, dockerfile('RUN echo hello'))
  await until(() => steps === 1)

  const reading = read(ada, `${id}/logs?follow=true`)
  await host.templateBuilds.interruptAll()
  const frames = await reading

  assert.deepEqual(textsOf(frames), [
    '#1 [1/1] RUN echo hello',
    'ERROR: the host agent restarted',
    '#1 [1/1] RUN echo hello',
    'hello',
    '#1 DONE 0.0s',
  ])
  assert.deepEqual(frames.at(-1), { final: true, status: 'ready' })
  const attempt = async (n: number) => linesOf(await read(ada, `${id}/logs?attempt=${n}`))
  assert.deepEqual([...(await attempt(1)), ...(await attempt(2))], linesOf(frames))
  assert.deepEqual(await attempt(3), [])
  assert.deepEqual(await attempt(0), linesOf(frames))
})

test('a reader of a build that is deleted gets `failed`', async () => {
  const ada = await user()
  let reached = false
  host.hooks = {
    beforeBuildStep: () => {
      reached = true
      return new Promise(() => {})
    },
  }
  const id = await start(ada, dockerfile('RUN echo hello'))
  await until(() => reached)
  const reading = read(ada, `${id}/logs?follow=true`)
  await until(() => host.calls.some((call) => call === `GET /v1/builds/${id}/log`))

  await send('DELETE', `/v1/templates/${id}`, ada)
  const frames = await reading

  assert.deepEqual(frames.at(-1), { final: true, status: 'failed' })
  assert.equal((await send('GET', `/v1/templates/${id}/logs`, ada)).status, 404)
})

test('a pending build that is deleted ends its readers too', async () => {
  const waiting = await createHostedApp({ config: { buildsPerHost: 0 } })
  const ada = await waiting.user()
  const id = await templateApi(waiting).start(ada)
  const { port: other } = await listenOn(waiting.app)

  const response = await openStream(other, `/v1/templates/${id}/logs?follow=true`, ada.headers)
  await waiting.send('DELETE', `/v1/templates/${id}`, ada)

  assert.deepEqual(await readFrames(response), [{ final: true, status: 'failed' }])
})

test('a build that failed without its host has the reason as its only line, once', async () => {
  const ada = await user()
  host.hooks = {
    beforeBuild: () => {
      throw new Error('out of luck')
    },
  }
  const id = await start(ada, dockerfile('RUN echo hello'))
  const { failure_reason } = await untilStatus(ada, id, 'failed')

  const frames = await read(ada, `${id}/logs?follow=true`)
  const rest = await read(ada, `${id}/logs?follow=true&after=1`)

  assert.equal(failure_reason, 'the host failed')
  assert.deepEqual(textsOf(frames), ['ERROR: the host failed'])
  assert.equal(linesOf(frames)[0]!.number, 1)
  assert.deepEqual(rest, [{ final: true, status: 'failed' }])
})

test('a reader that stops reading loses nothing', async () => {
  const ada = await user()
  const id = await build(ada)
  const { lines } = host.templateBuilds.builds.get(id)!
  const stream = `${'x'.repeat(1000)}\n`
  while (lines.length < 5_000) lines.push({ line: lines.length + 1, attempt: 1, ts: new Date().toISOString(), stream })

  const response = await open(ada, `${id}/logs?follow=true`)
  response.pause()
  await until(() => response.readableLength > 0, 'some of the log has arrived')
  const frames = await readFrames(response)

  assert.deepEqual(
    linesOf(frames).map(({ number }) => number),
    lines.map(({ line }) => line),
  )
})

test('a log whose host is away is 502, and one that is not kept any more is empty', async () => {
  const ada = await user()
  const id = await build(ada, dockerfile('RUN echo hello'))

  await host.stop()
  const away = await send('GET', `/v1/templates/${id}/logs`, ada)
  await host.start()

  assert.deepEqual([away.status, away.body.message], [502, 'the log cannot be read: the host did not answer in time'])
  host.templateBuilds.builds.get(id)!.lines.length = 0
  assert.deepEqual(await read(ada, `${id}/logs?follow=true`), [{ final: true, status: 'ready' }])
  assert.ok(await deps.db.selectFrom('templates').selectAll().where('id', '=', id).executeTakeFirst())
})
