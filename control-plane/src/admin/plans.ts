/** `warren admin plan`: lists the plans with their limits. */
import type { Command } from 'commander'
import { LIMIT_NAMES, type LimitName, type Limits, PLAN_NAMES, planLimits } from '../users/plans.ts'
import { printResult } from './run-on-database.ts'

export function addPlanCommand(admin: Command, isJson: () => boolean): void {
  admin
    .command('plan')
    .description('list the plans and their limits')
    .action(() => printResult(LIMIT_NAMES.map(listByPlan), isJson()))
}

const listByPlan = (limit: LimitName) => ({
  limit,
  ...Object.fromEntries(PLAN_NAMES.map((plan) => [plan, viewLimits(planLimits(plan))[limit]])),
})

/** Infinity is not JSON. */
export const viewLimits = (limits: Limits): Record<string, number | 'unlimited'> =>
  Object.fromEntries(
    Object.entries(limits).map(([name, value]) => [name, Number.isFinite(value) ? value : 'unlimited']),
  )
