/** The API reference at /docs in Debian's Chromium: it is complete, works, and contacts no other server. */
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { after, before, describe, test } from 'node:test'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { type Browser, chromium, type Page } from 'playwright-core'
import { createDataDir, type Instance, startInstance } from './support/instance.ts'

/** Installed by tools/test-tools.sh. */
const CHROMIUM = '/usr/bin/chromium'

const dataDir = await createDataDir({ after })

describe('the API reference', { skip: !existsSync(CHROMIUM) && 'chromium is not installed' }, () => {
  let instance: Instance
  let browser: Browser
  let page: Page
  const requested: string[] = []
  const complaints: string[] = []

  before(async () => {
    instance = await startInstance(dataDir)
    // Its own sandbox does not work as root. The pages come from the instance above only.
    browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] })
    page = await browser.newPage({ colorScheme: 'dark' })
    page.setDefaultTimeout(scaleLimit(15_000))
    page.on('request', (request) => requested.push(request.url()))
    page.on('pageerror', (error) => complaints.push(error.message))
    // Violations of the content security policy are console errors.
    page.on('console', (message) => message.type() === 'error' && complaints.push(message.text()))
    await page.goto(`${instance.baseUrl}/docs`)
    await page.getByRole('heading', { name: 'Warren sandbox API' }).waitFor()
  })
  after(() => browser?.close())

  test('shows every section of the API, in the colours of the system', async () => {
    for (const section of ['sandboxes', 'guest', 'processes', 'network']) {
      await page.getByRole('link', { name: section, exact: true }).first().waitFor()
    }
    const background = await page.evaluate('getComputedStyle(document.body).backgroundColor')

    assert.match(String(background), /^rgb\((\d|[1-5]\d), /, 'a dark colour')
  })

  test('search finds an operation', async () => {
    await page
      .getByRole('button', { name: /search/i })
      .first()
      .click()
    await page.keyboard.type('fork')
    await page.getByRole('option', { name: /Fork a paused sandbox/ }).waitFor()
    await page.keyboard.press('Escape')
  })

  test('an operation has samples in curl, TypeScript and Python', async () => {
    await page.goto(`${instance.baseUrl}/docs#tag/identity/GET/v1/whoami`)
    await page.getByRole('heading', { name: 'Get the id of the caller' }).waitFor()
    const shown = async (text: string) => (await page.locator('body').textContent())?.includes(text) ?? false
    await until(() => shown('curl "$WARREN_BASE_URL/v1/whoami"'), 'the sample in curl is shown')

    for (const [language, text] of [
      ['TypeScript', 'const response = await fetch('],
      ['Python', 'requests.get('],
    ] as const) {
      await page.getByTestId('client-picker').last().click()
      await page.getByRole('option', { name: language }).first().click()
      await until(() => shown(text), `the sample in ${language} is shown`)
    }
  })

  test('a request can be sent from the page', async () => {
    await page
      .getByRole('button', { name: /Test Request.*whoami/i })
      .first()
      .click()
    await page.getByRole('dialog').locator('input[type=text], input[type=password]').first().fill(instance.key)
    const [response] = await Promise.all([
      page.waitForResponse(`${instance.baseUrl}/v1/whoami`),
      page.getByRole('button', { name: /^Send/ }).first().click(),
    ])

    assert.equal(response.status(), 200)
    assert.equal(response.request().headers()['x-api-key'], instance.key)
  })

  test('nothing was requested from elsewhere, and nothing violated the content security policy', () => {
    const foreign = requested.filter((url) => !url.startsWith(`${instance.baseUrl}/`) && !/^(data|blob):/.test(url))

    assert.deepEqual(foreign, [])
    assert.deepEqual(complaints, [])
  })
})
