/** For tests: templates through the API. */
import assert from 'node:assert/strict'
import { until } from '@warren/kit/testing/until'
import { TemplateView } from '@warren/protocol'
import { Value } from 'typebox/value'
import type { TestResponse, TestUser } from './app.ts'
import type { HostedApp } from './with-host.ts'

export function templateApi({ app, send }: Pick<HostedApp, 'app' | 'send'>) {
  const dockerfile = (...lines: string[]) => ['FROM debian:13', ...lines].join('\n')

  const submit = (who: TestUser, text = dockerfile(), more: object = {}): Promise<TestResponse> =>
    send('POST', '/v1/templates', who, { name: 'tools', dockerfile: text, ...more })

  const getView = async (who: TestUser, id: string): Promise<TemplateView> => {
    const { body } = await send('GET', `/v1/templates/${id}`, who)
    assert.ok(Value.Check(TemplateView, body.data), JSON.stringify(body))
    return body.data
  }

  const untilStatus = (who: TestUser, id: string, status: TemplateView['status']): Promise<TemplateView> =>
    until(async () => {
      const view = await getView(who, id)
      return view.status === status ? view : undefined
    }, `${id} is ${status}`)

  /** Submits a Dockerfile and returns the id. */
  const start = async (who: TestUser, text?: string, more?: object): Promise<string> => {
    const { status, body } = await submit(who, text, more)
    assert.equal(status, 200, JSON.stringify(body))
    return body.data.id
  }

  /** Submits a Dockerfile and waits until it is ready. */
  const build = async (who: TestUser, text?: string, more?: object): Promise<string> => {
    const id = await start(who, text, more)
    await untilStatus(who, id, 'ready')
    return id
  }

  /** With a header, which `send` has no argument for. */
  const submitWith = async (headers: Record<string, string>, who: TestUser, body: object): Promise<TestResponse> => {
    const response = await app.inject({
      method: 'POST',
      url: '/v1/templates',
      headers: { ...who.headers, ...headers },
      payload: body,
    })
    return { status: response.statusCode, headers: response.headers, body: response.json() }
  }

  return { dockerfile, submit, submitWith, getView, untilStatus, start, build }
}
