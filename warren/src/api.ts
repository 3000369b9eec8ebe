/** The API as the commands that use sandboxes reach it: the one that the environment names, or the one running here. */
import { readFile } from 'node:fs/promises'
import type { Page, SandboxView } from '@warren/protocol'
import { readBox } from './config.ts'
import { isAlive, readInstance } from './instance.ts'

export type Api = { baseUrl: string; key: string }

const PAGE_ITEMS = 500

/** A key may go with the instance here, but the key kept here goes to no other address. */
export async function getApi(env: NodeJS.ProcessEnv = process.env): Promise<Api> {
  const baseUrl = env.WARREN_BASE_URL?.replace(/\/+$/, '')
  const key = env.WARREN_API_KEY
  if (baseUrl && key) return { baseUrl, key }
  const here = await getLocalApi()
  if (key) return { ...here, key }
  if (baseUrl && baseUrl !== here.baseUrl) throw new Error(`WARREN_API_KEY must be set, for ${baseUrl}`)
  return here
}

export async function getLocalApi(): Promise<Api> {
  const box = readBox()
  const instance = await readInstance(box)
  if (!instance?.baseUrl || !isAlive(instance)) {
    throw new Error(`Warren is not running on ${box.dataDir}; start it with npm start`)
  }
  return { baseUrl: instance.baseUrl, key: (await readFile(box.keyFile, 'utf8')).trim() }
}

/** By id or by name; of a name that was used before, the sandbox that has it now. */
export async function getSandboxId(api: Api, sandbox: string): Promise<string> {
  if (!/^[\w-]+$/.test(sandbox)) throw new Error(`${sandbox} is neither the name nor the id of a sandbox`)
  if (sandbox.startsWith('sb-')) return sandbox
  for (let offset = 0; ; offset += PAGE_ITEMS) {
    const { data } = await ask<Page<SandboxView>>(api, 'GET', `/v1/sandboxes?limit=${PAGE_ITEMS}&offset=${offset}`)
    const found = data.find(({ name, status }) => name === sandbox && status !== 'destroyed' && status !== 'failed')
    if (found) return found.id
    if (data.length < PAGE_ITEMS) throw new Error(`you have no sandbox named ${sandbox}`)
  }
}

export async function ask<Data>(api: Api, method: string, path: string, body?: object): Promise<Data> {
  const payload = body === undefined ? {} : { body: JSON.stringify(body) }
  const response = await fetch(`${api.baseUrl}${path}`, {
    method,
    headers: { 'X-Api-Key': api.key },
    ...payload,
  }).catch((error: Error) => {
    // fetch itself says only that it failed.
    throw new Error(`cannot reach ${api.baseUrl}`, { cause: error.cause ?? error })
  })
  const text = await response.text()
  if (!response.ok) throw new Error(refusal(response.status, text))
  return (JSON.parse(text) as { data: Data }).data
}

/** What an answer that is no success says, in words. */
export function refusal(status: number, text: string): string {
  try {
    const { message, data } = JSON.parse(text) as { message?: string; data?: Record<string, string> }
    const words = Object.entries(data ?? {}).filter(([name]) => name !== 'code')
    return message ?? words.map(([name, value]) => (name === 'message' ? value : `${name}: ${value}`)).join(', ')
  } catch {
    return `the API answered ${status}`
  }
}
